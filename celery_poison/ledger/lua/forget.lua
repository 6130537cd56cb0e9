-- forget: a parking that ended long ago leaves the books, if it is still the one that was read.
-- KEYS[1] parked hash
-- KEYS[2] awaited hash
-- ARGV[1] mid
-- ARGV[2] seen   the raw parking
-- RETURNS OK | CONFLICT
-- JOURNALS nothing
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return {'CONFLICT'} end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return {'OK'}
