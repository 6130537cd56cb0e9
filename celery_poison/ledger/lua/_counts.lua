-- Shared by every script that counts: totals since the ledger began, changed in the step that they count.
local function count(key, what, cause)
  redis.call('HINCRBY', key, cause and what .. ':' .. cause or what, 1)
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
