-- unblock: take a task or a fingerprint off the block list, and forget its convictions.
-- KEYS[1] blocks      hash
-- KEYS[2] convictions string
-- KEYS[3] journal     stream
-- ARGV[1] maxlen
-- ARGV[2] kind        task | fingerprint
-- ARGV[3] name        of the task, or the fingerprint
-- ARGV[4] actor
-- ARGV[5] journalled        the note of the journal
-- RETURNS OK, version | DONE (it is not blocked, or not any more)
-- JOURNALS unblocked
local now, rule = now_ms(), ARGV[2] .. ':' .. ARGV[3]
tidy_blocks(KEYS[1], now)
local raw = redis.call('HGET', KEYS[1], rule)
if not raw then return {'DONE'} end
redis.call('HDEL', KEYS[1], rule)
redis.call('DEL', KEYS[2])
local version = raise_version(KEYS[1], now)
local read, told = pcall(cjson.decode, raw)
local task = read and type(told) == 'table' and type(told.task) == 'string' and told.task or ''
journal(KEYS[3], ARGV[1], {event = 'unblocked', task = task, actor = ARGV[4], note = ARGV[5]})
return {'OK', version}
