-- lift_hold: a hold by value catches nothing any more.
-- KEYS[1] value_holds hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] number
-- ARGV[3] actor
-- ARGV[4] journalled    the note of the journal
-- RETURNS OK | DONE (there is no such hold)
-- JOURNALS hold_lifted
if redis.call('HDEL', KEYS[1], 'hold:' .. ARGV[2]) == 0 then return {'DONE'} end
raise_version(KEYS[1], now_ms())
journal(KEYS[2], ARGV[1], {event = 'hold_lifted', actor = ARGV[3], note = ARGV[4]})
return {'OK'}
