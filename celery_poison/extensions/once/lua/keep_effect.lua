-- keep_effect: the task that has an idempotency key has returned: within the window there is no second effect.
-- KEYS[1] effect hash
-- ARGV[1] token     of its start
-- ARGV[2] window_ms
-- RETURNS OK | CONFLICT (another start has the key)
-- JOURNALS nothing
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {'CONFLICT'} end
redis.call('HSET', KEYS[1], 'done', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'OK'}
