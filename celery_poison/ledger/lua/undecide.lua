-- undecide: the decision could not be carried out; the message stays in quarantine, open to everybody.
-- KEYS[1] message hash
-- ARGV[1] number  of the decision that is given up
-- RETURNS OK (also when another person took the decision over)
-- JOURNALS nothing
if redis.call('HGET', KEYS[1], 'decisions') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'deciding', 'deciding_at', 'deciding_note')
end
return {'OK'}
