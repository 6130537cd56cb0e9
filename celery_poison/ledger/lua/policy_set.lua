-- policy_set: override the policy of one task, or of every task (*), at run time; or take that back.
-- KEYS[1] policy  hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] task     name, or *
-- ARGV[3] options  JSON object; the empty string takes the override away
-- ARGV[4] expected version that was read
-- ARGV[5] actor
-- ARGV[6] note     what changes, and why
-- RETURNS OK, version | CONFLICT, version (a policy was changed since it was read)
-- JOURNALS policy_changed
local version = tonumber((redis.call('HGET', KEYS[1], 'version') or ''):match('^%d+$') or 0)
if version ~= tonumber(ARGV[4]) then return {'CONFLICT', version} end
-- By the clock, so that a version which Redis lost in a failover is never given out twice.
version = math.max(version + 1, now_ms())
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[2])
else
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
redis.call('HSET', KEYS[1], 'version', version)
journal(KEYS[2], ARGV[1], {event = 'policy_changed', task = ARGV[2], actor = ARGV[5], note = ARGV[6]})
return {'OK', version}
