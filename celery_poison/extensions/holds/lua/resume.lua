-- resume: messages of a queue, or of a task, that was paused go on.
-- KEYS[1] paused  hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] scope   queue | task | version
-- ARGV[3] name    of the queue, or of the task
-- ARGV[4] actor
-- ARGV[5] journalled    the note of the journal
-- ARGV[6] field   of the hash
-- ARGV[7] code_version  for which alone a task was paused, or ''
-- RETURNS OK, version | DONE (it is not paused)
-- JOURNALS resumed
if redis.call('HDEL', KEYS[1], ARGV[6]) == 0 then return {'DONE'} end
local version = raise_version(KEYS[1], now_ms())
journal(KEYS[2], ARGV[1], {event = 'resumed', task = ARGV[2] ~= 'queue' and ARGV[3] or '',
  queue = ARGV[2] == 'queue' and ARGV[3] or '', actor = ARGV[4], note = ARGV[5], release = ARGV[7]})
return {'OK', version}
