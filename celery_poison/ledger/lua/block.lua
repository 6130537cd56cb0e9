-- block: messages of a task, or bearing a fingerprint, go to quarantine on arrival from now on.
-- KEYS[1] blocks  hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] kind    task | fingerprint
-- ARGV[3] name    of the task, or the fingerprint
-- ARGV[4] task    whose messages can match; '' any
-- ARGV[5] lasts_ms 0: until a person unblocks it
-- ARGV[6] actor
-- ARGV[7] note
-- ARGV[8] journalled    the note of the journal
-- RETURNS OK, version
-- JOURNALS blocked
local now, lasts = now_ms(), tonumber(ARGV[5])
tidy_blocks(KEYS[1], now)
redis.call('HSET', KEYS[1], ARGV[2] .. ':' .. ARGV[3], cjson.encode({task = ARGV[4], since_ms = now,
  until_ms = lasts > 0 and now + lasts or 0, actor = ARGV[6], note = ARGV[7], convictions = 0}))
local version = raise_version(KEYS[1], now)
journal(KEYS[2], ARGV[1], {event = 'blocked', task = ARGV[4], actor = ARGV[6], note = ARGV[8]})
return {'OK', version}
