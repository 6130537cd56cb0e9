-- leave_notice: what became of a task, for a worker that may send events. Too many are forgotten.
-- KEYS[1] untold hash
-- ARGV[1] id      of the task
-- ARGV[2] notice  JSON array: fact, mid, story
-- ARGV[3] most    notices that are kept
-- ARGV[4] lifetime_ms
-- RETURNS OK | DONE (there are too many already)
-- JOURNALS nothing
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return {'DONE'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'OK'}
