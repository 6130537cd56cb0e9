-- Shared by every script that counts: totals since the ledger began, changed in the step that they count.
local function count(key, what, cause)
  redis.call('HINCRBY', key, cause and what .. ':' .. cause or what, 1)
end

-- A name as sums have it: of a long one its first 120 bytes, and no part of a letter.
local function clipped(name)
  return #name <= 120 and name or string.match(string.sub(name, 1, 121), '^(.*)[^\128-\191]') or ''
end

-- One death of a task on a day, as ``DAY TASK``. Fourteen days are kept, and fifty tasks of each: those beyond
-- have no name.
local function count_day(key, now, task)
  local day, known = math.floor(now / 86400000), 0
  local field = day .. ' ' .. clipped(task)
  if redis.call('HEXISTS', key, field) == 0 then
    for _, name in ipairs(redis.call('HKEYS', key)) do
      local of = tonumber(string.match(name, '^%d+') or 0)
      if string.match(name, '^lately ') then -- not of a day
      elseif of <= day - 14 then redis.call('HDEL', key, name) elseif of == day then known = known + 1 end
    end
    if known >= 50 then field = day .. ' ' end
  end
  redis.call('HINCRBY', key, field, 1)
end

-- The same death, in its five minutes, as ``lately NUMBER``; a day of them is kept. ``lately last`` is
-- its time in ms, ``lately task`` the task that died.
local function count_lately(key, now, task)
  local slot = math.floor(now / 300000)
  local field = 'lately ' .. slot
  if redis.call('HEXISTS', key, field) == 0 then
    for _, name in ipairs(redis.call('HKEYS', key)) do
      local of = tonumber(string.match(name, '^lately (%d+)$'))
      if of and of <= slot - 288 then redis.call('HDEL', key, name) end
    end
  end
  redis.call('HINCRBY', key, field, 1)
  redis.call('HSET', key, 'lately last', now, 'lately task', clipped(task))
end

-- How long one recovery took, as a histogram: bounds in seconds, ascending, in one string.
local function count_recovery(key, ms, bounds)
  local bucket = 'inf'
  for bound in string.gmatch(bounds, '%S+') do
    if ms <= tonumber(bound) * 1000 then bucket = bound break end
  end
  count(key, 'recovered', bucket)
  redis.call('HINCRBY', key, 'recovered_ms', ms)
end
