-- lived: a run that was taken for cut off lives, or ended alive: it leaves the sums of its day and of its worker's
-- death. Those since the ledger began are counters, and never go down.
-- KEYS[1] cost hash
local line, lineage, token = ...
local cut_off, ms, unknown, is_kept, sums = unpack(cjson.decode(line.cost or '[]'))
if cut_off ~= token then return end
for _, name in ipairs(sums) do
  if redis.call('HEXISTS', KEYS[1], 'runs ' .. name) == 1 then
    redis.call('HINCRBY', KEYS[1], 'runs ' .. name, -1)
    if ms > 0 then redis.call('HINCRBY', KEYS[1], 'ms ' .. name, 0 - ms) end
    if ms > 0 and is_kept == 1 then redis.call('HINCRBY', KEYS[1], 'kept ' .. name, 0 - ms) end
    if unknown == 1 then redis.call('HINCRBY', KEYS[1], 'unknown ' .. name, -1) end
  end
end
redis.call('HDEL', lineage, 'cost')
