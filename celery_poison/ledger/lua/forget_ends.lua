-- forget_ends: ends on record whose start is not, and which no monitor will ask for any more.
-- KEYS[1] done hash
-- KEYS[2] monitor_fence string
-- ARGV[1] fence   of the monitor that reports it
-- ARGV[2] tokens  from here on
-- RETURNS OK | FENCED
-- JOURNALS nothing (each end was journalled when it was written)
if fenced(KEYS[2], ARGV[1]) then return {'FENCED'} end
for i = 2, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
return {'OK'}
