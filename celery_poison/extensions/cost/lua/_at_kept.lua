-- kept: what the last run of a message had taken that goes to quarantine is not done again, unless another run of
-- it has begun since.
-- KEYS[1] cost hash
local line, token, begun = ...
local cut_off, ms, name = string.match(line.cost or '', '^(%S+) (%d+) (.*)$')
if not cut_off or ms == '0' or begun and cut_off ~= token then return end
if redis.call('HEXISTS', KEYS[1], 'runs ' .. name) == 1 then redis.call('HINCRBY', KEYS[1], 'kept ' .. name, ms) end
