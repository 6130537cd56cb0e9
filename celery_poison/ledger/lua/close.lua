-- close: everything of a dead worker was put back; its incident is finished.
-- KEYS[1] open     hash
-- KEYS[2] incident hash
-- KEYS[3] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] incident
-- ARGV[4] flagged
-- ARGV[5] put_back
-- RETURNS OK
-- JOURNALS failover_finished
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], 'finished_at', now_ms(), 'flagged', ARGV[4], 'put_back', ARGV[5])
journal(KEYS[3], ARGV[1], {event = 'failover_finished', worker = ARGV[2], incident = ARGV[3],
  note = 'flagged ' .. ARGV[4] .. ', put back ' .. ARGV[5]})
return {'OK'}
