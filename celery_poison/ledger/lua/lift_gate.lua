-- lift_gate: open the fleet gate, since its time is over or a person says so: deaths convict again.
-- KEYS[1] gate    hash
-- KEYS[2] deaths  zset
-- KEYS[3] journal stream
-- ARGV[1] maxlen
-- ARGV[2] actor   '' for the monitor, which lifts it only when its time is over
-- ARGV[3] note
-- RETURNS OK | DONE (it is not closed; for the monitor: or not over)
-- JOURNALS gate_lifted
local now = now_ms()
local ends = tonumber(redis.call('HGET', KEYS[1], 'until') or nil)
if not ends or ARGV[2] == '' and ends > now then return {'DONE'} end
redis.call('HDEL', KEYS[1], 'until')
redis.call('HSET', KEYS[1], 'lifted_at', now, 'lifted_by', ARGV[2])
if ARGV[2] ~= '' then redis.call('DEL', KEYS[2]) end -- these deaths are explained
journal(KEYS[3], ARGV[1], {event = 'gate_lifted', actor = ARGV[2], note = ARGV[3]})
return {'OK'}
