-- bury: declare one silent worker dead. Re-checks its last heartbeat and the monitor's fencing number.
-- KEYS[1] leases        zset
-- KEYS[2] worker        hash
-- KEYS[3] open          hash
-- KEYS[4] incidents     zset
-- KEYS[5] incident      hash
-- KEYS[6] monitor_fence string
-- KEYS[7] journal       stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] incident
-- ARGV[4] activation_ms
-- ARGV[5] fence
-- RETURNS OK, cause (worker_lost | shutdown) | FENCED | ALIVE (or gone already)
-- JOURNALS worker_lost
if redis.call('GET', KEYS[6]) ~= ARGV[5] then return {'FENCED'} end
local beat = redis.call('ZSCORE', KEYS[1], ARGV[2])
if not beat then return {'ALIVE'} end
local now = now_ms()
if now - tonumber(beat) < tonumber(ARGV[4]) then return {'ALIVE'} end
local stopping = redis.call('HGET', KEYS[2], 'stopping') == '1'
local cause = stopping and 'shutdown' or 'worker_lost'
local queues = redis.call('HGET', KEYS[2], 'queues') or ''
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[4], now, ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1001)
redis.call('HSET', KEYS[5], 'incident', ARGV[3], 'worker', ARGV[2], 'cause', cause, 'noticed_at', now,
  'last_beat', math.floor(tonumber(beat)), 'queues', queues)
redis.call('EXPIRE', KEYS[5], 2592000)
journal(KEYS[7], ARGV[1], {event = 'worker_lost', worker = ARGV[2], cause = cause, incident = ARGV[3]})
return {'OK', cause}
