-- acquit: a message with a history ended, or never ran. Takes away its flag and its record if that clears it.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] parked     hash
-- KEYS[6] parcels    hash
-- KEYS[7] journal    stream
-- KEYS[8] counts     hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] guilt      cleared, kept or unproven, see _lineage.lua
-- ARGV[5] copy       1 when the broker may not have heard of it: the mark by which a copy is recognised stays
-- ARGV[6] why        it never ran; empty: it ended alive
-- RETURNS OK, 1 if a candidate or a released message was cleared
-- JOURNALS cleared (only for a candidate or a released message), duplicate (a parked copy, or it never ran)
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
local mine, told = current and current.token == e.token, ARGV[5] ~= '1'
if mine and told then redis.call('HDEL', KEYS[1], ARGV[2]) end
-- Without a start on record (its worker had been taken for dead) nothing else will ever end the parking.
if not current or mine and told then
  end_parking_and_journal(KEYS[5], KEYS[6], KEYS[7], ARGV[1], ARGV[2], 'finished')
end
if told then redis.call('HDEL', KEYS[2], e.token) end
--@ lived(hash(KEYS[3]), KEYS[3], e.token)
local cleared = clear_and_journal(KEYS[3], KEYS[4], KEYS[8], KEYS[7], ARGV[1], ARGV[2], e, ARGV[4], ARGV[6])
return {'OK', cleared and 1 or 0}
