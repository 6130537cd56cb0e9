-- first_runs: replaces what is known of the first runs of a task under a version; may pause it for that version.
-- KEYS[1] first_runs string
-- KEYS[2] paused     hash
-- KEYS[3] journal    stream
-- ARGV[1] maxlen
-- ARGV[2] seen    what stands there, '' for nothing
-- ARGV[3] runs    what shall stand there
-- ARGV[4] keep_s  seconds for which it is remembered
-- ARGV[5] field   of the pause, '' for none
-- ARGV[6] task
-- ARGV[7] code_version
-- ARGV[8] cause
-- ARGV[9] note    of the pause
-- ARGV[10] journalled   the note of the journal
-- RETURNS OK | CONFLICT (something else stands there)
-- JOURNALS paused
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return {'CONFLICT'} end
redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[4])
if ARGV[5] == '' then return {'OK'} end
local now = now_ms()
redis.call('HSET', KEYS[2], ARGV[5],
  cjson.encode({since_ms = now, actor = '', note = ARGV[9], version = ARGV[7]}))
raise_version(KEYS[2], now)
journal(KEYS[3], ARGV[1], {event = 'paused', task = ARGV[6], cause = ARGV[8], release = ARGV[7], note = ARGV[10]})
return {'OK'}
