-- retire: a worker or a standalone monitor ends in peace; no monitor will look for it.
-- KEYS[1] leases   zset
-- KEYS[2] worker   hash
-- KEYS[3] presence hash
-- KEYS[4] gone     hash
-- KEYS[5] monitor  string
-- KEYS[6] buried   zset
-- KEYS[7] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- RETURNS OK
-- JOURNALS worker_stopped (for a worker)
local worked = redis.call('ZREM', KEYS[1], ARGV[2]) == 1
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[4], ARGV[2])
redis.call('ZADD', KEYS[6], now_ms(), ARGV[2]) -- a heartbeat that is still on its way finds it gone
if redis.call('GET', KEYS[5]) == ARGV[2] then redis.call('DEL', KEYS[5]) end
if worked then journal(KEYS[7], ARGV[1], {event = 'worker_stopped', worker = ARGV[2]}) end
return {'OK'}
