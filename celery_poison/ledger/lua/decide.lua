-- decide: one operator at a time. Reserves a message in quarantine for the release or the failing of it.
-- KEYS[1] message  hash
-- KEYS[2] outgoing zset
-- ARGV[1] verb     release | keep (a release that keeps the counts) | fail | discard | edit; of no person:
--   tell (its caller is told) | send (to its destination) | retry | again (as a person has scheduled it)
-- ARGV[2] actor
-- ARGV[3] note
-- ARGV[4] patience_ms  after which an unfinished decision counts as abandoned
-- ARGV[5] mid
-- RETURNS OK, number of this decision (and of the release, if it is one) | MISSING | ILLEGAL, state | BUSY, actor
-- JOURNALS nothing (the outcome is journalled by released, give_up or edit)
local m = redis.call('HMGET', KEYS[1], 'state', 'deciding', 'deciding_at', 'sent_at', 'destination')
-- What is not in quarantine any more does not leave it by itself.
if m[1] ~= 'NDLV' then redis.call('ZREM', KEYS[2], ARGV[5]) end
if not m[1] then return {'MISSING'} end
if m[1] ~= 'NDLV' then return {'ILLEGAL', m[1]} end
local now = now_ms()
if m[2] and now - tonumber(m[3]) < tonumber(ARGV[4]) then return {'BUSY', m[2]} end
local leaving = ({release = '0', send = '0', retry = '1', again = '2', keep = '3'})[ARGV[1]]
-- Another number would make the copy in its destination void, which is the only one.
if m[4] and (leaving or ARGV[1] == 'edit') then return {'ILLEGAL', 'NDLV, sent to the queue ' .. m[5]} end
-- A deletion first: then a Redis that is full lets the rest through, which makes room at last.
if ARGV[1] == 'discard' or ARGV[1] == 'fail' then redis.call('HDEL', KEYS[1], 'deciding') end
local number = redis.call('HINCRBY', KEYS[1], 'decisions', 1)
local told = leaving and {'release', number, 'retried', leaving} or {}
redis.call('HSET', KEYS[1], 'deciding', ARGV[2], 'deciding_at', now, 'deciding_note', ARGV[3], unpack(told))
if ARGV[1] == 'release' or ARGV[1] == 'keep' or ARGV[1] == 'again' then redis.call('HINCRBY', KEYS[1], 'releases', 1) end
return {'OK', number}
