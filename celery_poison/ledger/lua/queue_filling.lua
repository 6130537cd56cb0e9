-- queue_filling: warns that a queue comes near its limit, once in a while.
-- KEYS[1] filling hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] queue
-- ARGV[3] note
-- ARGV[4] quiet_ms  after a warning
-- RETURNS OK | DONE (there was a warning lately)
-- JOURNALS queue_filling
local now = now_ms()
if now - tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or 0) < tonumber(ARGV[4]) then return {'DONE'} end
redis.call('HSET', KEYS[1], ARGV[2], now)
redis.call('PEXPIRE', KEYS[1], 86400000)
journal(KEYS[2], ARGV[1], {event = 'queue_filling', queue = ARGV[2], note = ARGV[3]})
return {'OK'}
