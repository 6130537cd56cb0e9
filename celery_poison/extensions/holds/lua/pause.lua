-- pause: messages of a queue, or of a task, stay where they are from now on.
-- KEYS[1] paused  hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] scope   queue | task
-- ARGV[3] name    of the queue, or of the task
-- ARGV[4] actor
-- ARGV[5] note
-- ARGV[6] journalled    the note of the journal
-- RETURNS OK, version
-- JOURNALS paused
local now = now_ms()
redis.call('HSET', KEYS[1], ARGV[2] .. ':' .. ARGV[3],
  cjson.encode({since_ms = now, actor = ARGV[4], note = ARGV[5]}))
local version = raise_version(KEYS[1], now)
journal(KEYS[2], ARGV[1], {event = 'paused', task = ARGV[2] == 'task' and ARGV[3] or '',
  queue = ARGV[2] == 'queue' and ARGV[3] or '', actor = ARGV[4], note = ARGV[6]})
return {'OK', version}
