-- send_tied: a task has succeeded; what it has published leaves. Sent unanswered, in one step with its end.
-- KEYS[1] running     hash
-- KEYS[2] tied        list
-- KEYS[3] outbox_seq  string
-- KEYS[4] outbox_due  zset
-- KEYS[5] outbox_wake list
-- ARGV[1] mid
-- ARGV[2] token
-- ARGV[3] lanes  prefix of the lanes
-- RETURNS OK | STALE (the message has a new owner: nothing leaves)
-- JOURNALS nothing
local current = start_of(redis.call('HGET', KEYS[1], ARGV[1]))
if not current or current.token ~= ARGV[2] then return {'STALE'} end
send_tied({tied = KEYS[2], outbox_seq = KEYS[3], outbox_due = KEYS[4], outbox_wake = KEYS[5]}, ARGV[3])
return {'OK'}
