-- outbox_block: nothing is sent to a queue any more, or nothing of one task to it, until somebody unblocks it.
-- KEYS[1] outbox_blocked hash
-- KEYS[2] journal        stream
-- ARGV[1] maxlen
-- ARGV[2] queue
-- ARGV[3] task   '' for all of the queue
-- ARGV[4] actor
-- ARGV[5] note
-- RETURNS OK | DONE (it was blocked already; actor and note are these now)
-- JOURNALS queue_blocked
local what = ARGV[3] == '' and ARGV[2] or ARGV[2] .. '\t' .. ARGV[3]
local new = redis.call('HSET', KEYS[1], what,
  cjson.encode({at_ms = now_ms(), cause = '', actor = ARGV[4], note = ARGV[5], seq = 0}))
if new == 0 then return {'DONE'} end
journal(KEYS[2], ARGV[1], {event = 'queue_blocked', queue = ARGV[2], task = ARGV[3], cause = '', actor = ARGV[4],
  note = ARGV[5]})
return {'OK'}
