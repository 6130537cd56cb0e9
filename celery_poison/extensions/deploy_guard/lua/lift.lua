-- lift: ends the pause of a task for a version that no worker runs any more; its first runs begin anew.
-- KEYS[1] first_runs string
-- KEYS[2] paused     hash
-- KEYS[3] journal    stream
-- ARGV[1] maxlen
-- ARGV[2] field  of the pause
-- ARGV[3] task
-- ARGV[4] code_version
-- ARGV[5] journalled   the note of the journal
-- RETURNS OK | DONE (a person was faster)
-- JOURNALS resumed
redis.call('DEL', KEYS[1])
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then return {'DONE'} end
raise_version(KEYS[2], now_ms())
journal(KEYS[3], ARGV[1], {event = 'resumed', task = ARGV[3], release = ARGV[4], note = ARGV[5]})
return {'OK'}
