-- undecide: the decision could not be carried out; the message stays in quarantine, open to everybody.
-- KEYS[1] message hash
-- RETURNS OK
-- JOURNALS nothing
redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at')
return {'OK'}
