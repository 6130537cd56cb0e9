-- lead: take or keep the monitor's lock. Every change of hands raises the fencing number.
-- KEYS[1] monitor       string
-- KEYS[2] monitor_fence string
-- KEYS[3] journal       stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] ttl_ms
-- RETURNS OK, fence, 1 if the lock changed hands | HELD, holder
-- JOURNALS monitor_changed
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'OK', tonumber(redis.call('GET', KEYS[2]) or '0'), 0}
end
if holder then return {'HELD', holder} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local fence = redis.call('INCR', KEYS[2])
journal(KEYS[3], ARGV[1], {event = 'monitor_changed', worker = ARGV[2], note = tostring(fence)})
return {'OK', fence, 1}
