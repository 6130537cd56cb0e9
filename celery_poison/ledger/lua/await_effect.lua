-- await_effect: DLNG -> TBDL. A start ends for whose idempotency key another one runs, or which has found no cell;
-- its message is parked.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] awaited hash
-- KEYS[6] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] effect  the key of the start that has the effect; '' when that could not be asked, and for a suspect
-- ARGV[5] parcel  the original message
-- ARGV[6] limit_bytes  of what is parked; '' for none
-- RETURNS OK | HELD (there is no room) | STALE (the message has a newer start, or none)
-- JOURNALS parked
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if not current or current.token ~= e.token then return {'STALE'} end
if not has_room(KEYS[4], #ARGV[5], ARGV[6]) then return {'HELD'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e.token)
redis.call('HSET', KEYS[3], ARGV[2], parking_text('waiting', raised(parking_of(KEYS[3], ARGV[2])), e))
redis.call('HSET', KEYS[4], ARGV[2], ARGV[5])
-- What an earlier parking of it waited for holds it up no more.
if ARGV[4] ~= '' then redis.call('HSET', KEYS[5], ARGV[2], ARGV[4]) else redis.call('HDEL', KEYS[5], ARGV[2]) end
journal(KEYS[6], ARGV[1], {event = 'parked', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, state = 'TBDL',
  note = ARGV[4] == '' and e.alone ~= 0 and 'for its trial' or 'for its idempotency key'})
return {'OK'}
