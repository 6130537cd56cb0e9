-- kept: what the last run of a message had taken that goes to quarantine is not done again, unless another run of
-- it has begun since.
-- KEYS[1] cost hash
local line, token, begun = ...
local cut_off, ms, _, is_kept, sums = unpack(cjson.decode(line.cost or '[]'))
if not cut_off or ms == 0 or is_kept == 1 or begun and cut_off ~= token then return end
for _, name in ipairs(sums) do
  if redis.call('HEXISTS', KEYS[1], 'runs ' .. name) == 1 then redis.call('HINCRBY', KEYS[1], 'kept ' .. name, ms) end
end
