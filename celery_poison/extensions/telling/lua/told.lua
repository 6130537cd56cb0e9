-- told: the caller of a message in quarantine has its failure; the message stays, open to everybody.
-- KEYS[1] message hash
-- ARGV[1] number  of the decision under which it was told
-- RETURNS OK | STALE (it has left quarantine, or another decision took it over)
-- JOURNALS nothing
local m = redis.call('HMGET', KEYS[1], 'state', 'decisions')
if m[1] ~= 'NDLV' or m[2] ~= ARGV[1] then return {'STALE'} end
redis.call('HSET', KEYS[1], 'told', '1')
redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at', 'deciding_note')
return {'OK'}
