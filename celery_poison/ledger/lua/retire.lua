-- retire: a worker ends in peace; nobody will look for it.
-- KEYS[1] leases  zset
-- KEYS[2] worker  hash
-- KEYS[3] monitor string
-- KEYS[4] journal stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- RETURNS OK
-- JOURNALS worker_stopped
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
if redis.call('GET', KEYS[3]) == ARGV[2] then redis.call('DEL', KEYS[3]) end
journal(KEYS[4], ARGV[1], {event = 'worker_stopped', worker = ARGV[2]})
return {'OK'}
