-- Shared by the scripts that count what messages take which never reached a task: whoever may publish sends them.
-- Beside its own fields, a message takes about so much in Redis: its record, indexes, groups, an entry of the journal.
local OVERHEAD = 2048

-- Bytes of all words from the n-th on, and of what goes with them.
local function size_of(words, n)
  local size = OVERHEAD
  for i = n, #words do size = size + #words[i] end
  return size
end

-- A message leaves the ledger: what was counted of it is free. An older version may not have counted.
local function uncount(key, size)
  if size and redis.call('DECRBY', key, size) < 0 then redis.call('DEL', key) end
end
