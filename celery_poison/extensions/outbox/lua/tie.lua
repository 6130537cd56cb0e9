-- tie: a task has returned. The messages that it published are kept until its end is on record, and leave then.
-- KEYS[1] running     hash
-- KEYS[2] done        hash
-- KEYS[3] buried      zset
-- KEYS[4] tied        list
-- KEYS[5] tied_lately string
-- ARGV[1] mid
-- ARGV[2] start
-- ARGV[3] lasts_ms
-- ARGV[4] messages  from here on: lane and packed message of each
-- RETURNS OK | STALE (the message has a new owner, or is about to have one)
-- JOURNALS nothing
local e, current = start_of(ARGV[2]), start_of(redis.call('HGET', KEYS[1], ARGV[1]))
if current and current.token ~= e.token then return {'STALE'} end
-- Under the name that it has now: its worker may have rejoined, and reclaimed it.
if redis.call('ZSCORE', KEYS[3], (current or e).worker) then return {'STALE'} end
if not current then
  if redis.call('HGET', KEYS[2], e.token) then return {'STALE'} end
  -- Its start was sent on another connection, and may arrive only after this.
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
redis.call('DEL', KEYS[4])
for i = 4, #ARGV, 2 do redis.call('RPUSH', KEYS[4], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[4], ARGV[3])
redis.call('SET', KEYS[5], '1', 'PX', ARGV[3])
return {'OK'}
