-- unpark: a parked message was published again. Its parking stays on record, so that stale copies are recognised.
-- KEYS[1] parked  hash
-- KEYS[2] parcels hash
-- KEYS[3] awaited hash
-- KEYS[4] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] number  of the parking, as it was published
-- RETURNS OK | CONFLICT (it was parked again, or is over)
-- JOURNALS unparked
local p = parking_of(KEYS[1], ARGV[2])
if not p or p.state ~= 'waiting' or p.number ~= tonumber(ARGV[3]) then return {'CONFLICT'} end
local e = p.start
redis.call('HSET', KEYS[1], ARGV[2], parking_text('published', p.number, e))
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2])
journal(KEYS[4], ARGV[1], {event = 'unparked', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, state = 'TBDL'})
return {'OK'}
