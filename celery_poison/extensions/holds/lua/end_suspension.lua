-- end_suspension: a worker consumes a queue again, since its time is over, or a person says so.
-- KEYS[1] paused   hash
-- KEYS[2] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] field    endpoint:NODE QUEUE
-- ARGV[3] queue
-- ARGV[4] worker
-- ARGV[5] actor    '' when its time is over
-- ARGV[6] note
-- RETURNS OK, version | DONE (it is not suspended)
-- JOURNALS endpoint_resumed
if redis.call('HDEL', KEYS[1], ARGV[2]) == 0 then return {'DONE'} end
local version = raise_version(KEYS[1], now_ms())
journal(KEYS[2], ARGV[1], {event = 'endpoint_resumed', queue = ARGV[3], worker = ARGV[4], actor = ARGV[5],
  note = ARGV[6]})
return {'OK', version}
