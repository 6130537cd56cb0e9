-- lead: take or keep the monitor's lock. Every change of hands raises the fencing number.
-- KEYS[1] monitor       string
-- KEYS[2] monitor_fence string
-- KEYS[3] presence      hash
-- KEYS[4] gone          hash
-- KEYS[5] leases        zset
-- KEYS[6] journal       stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] ttl_ms
-- ARGV[4] patience_ms  for which the holder's connections must be gone
-- ARGV[5] run_id       of the server at which the taker is subscribed, '' for none
-- ARGV[6] alive
-- ARGV[7] ended        prefix of the words of nurseries
-- RETURNS OK, fence, 1 if the lock changed hands | HELD, holder
-- JOURNALS monitor_changed
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[2] then
  local now, presence = now_ms(), redis.call('HGET', KEYS[3], holder)
  local since = gone_since(KEYS[4], holder, connected(ARGV[6], presence, holder, run_id()), now)
  if not is_gone(since, now, ARGV[4], ARGV[7], holder) then return {'HELD', holder} end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[5])
if holder == ARGV[2] then return {'OK', tonumber(redis.call('GET', KEYS[2]) or '0'), 0} end
-- What monitors that have died left here: standalone ones, and those of workers that had rejoined.
for _, name in ipairs(redis.call('HKEYS', KEYS[3])) do
  if name ~= ARGV[2] and not redis.call('ZSCORE', KEYS[5], name) then
    redis.call('HDEL', KEYS[3], name)
    redis.call('HDEL', KEYS[4], name)
  end
end
local fence = redis.call('INCR', KEYS[2])
journal(KEYS[6], ARGV[1], {event = 'monitor_changed', worker = ARGV[2], note = tostring(fence)})
return {'OK', fence, 1}
