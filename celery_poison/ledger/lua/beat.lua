-- beat: a worker says that it lives. The first beat registers it.
-- KEYS[1] leases  zset
-- KEYS[2] worker  hash
-- KEYS[3] open    hash
-- KEYS[4] journal stream
-- ARGV[1] maxlen
-- ARGV[2] worker  its incarnation
-- ARGV[3] first   1 for the first beat
-- ARGV[4] fields  field, value, ... from here on
-- RETURNS OK, now in ms | FENCED (it was declared dead while it was silent; it is registered anew as
--   soon as everything it held has been put back)
-- JOURNALS worker_started (first beat)
local now = now_ms()
local code = 'OK'
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 then return {'FENCED'} end
if ARGV[3] == '1' then
  journal(KEYS[4], ARGV[1], {event = 'worker_started', worker = ARGV[2]})
elseif not redis.call('ZSCORE', KEYS[1], ARGV[2]) then
  code = 'FENCED'
end
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[2], 86400)
return {code, now}
