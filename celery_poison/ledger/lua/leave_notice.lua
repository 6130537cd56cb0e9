-- leave_notice: what became of tasks, for a worker that may send events. Too many are forgotten.
-- KEYS[1] untold hash
-- ARGV[1] most    notices that are kept, about
-- ARGV[2] lifetime_ms
-- ARGV[3] notices task id, notice, ... from here on; a notice is a JSON array: fact, mid, story
-- RETURNS OK | DONE (there are too many already)
-- JOURNALS nothing
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {'DONE'} end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'OK'}
