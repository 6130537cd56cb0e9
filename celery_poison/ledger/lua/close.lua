-- close: everything of a dead worker was put back; its incident is finished.
-- KEYS[1] open     hash
-- KEYS[2] incident hash
-- KEYS[3] monitor_fence string
-- KEYS[4] journal  stream
-- KEYS[5] counts   hash
-- ARGV[1] maxlen
-- ARGV[2] worker
-- ARGV[3] incident
-- ARGV[4] flagged
-- ARGV[5] put_back
-- ARGV[6] returned  where to: a JSON object, queue -> number
-- ARGV[7] fence
-- ARGV[8] bounds    of the histogram of recoveries: seconds, ascending, with blanks between
-- RETURNS OK | FENCED
-- JOURNALS failover_finished
if fenced(KEYS[3], ARGV[7]) then return {'FENCED'} end
redis.call('HDEL', KEYS[1], ARGV[2])
local now, died_at = now_ms(), redis.call('HGET', KEYS[2], 'died_at')
if died_at then count_recovery(KEYS[5], math.max(0, now - died_at), ARGV[8]) end
redis.call('HSET', KEYS[2], 'finished_at', now, 'flagged', ARGV[4], 'put_back', ARGV[5],
  'returned', ARGV[6])
journal(KEYS[4], ARGV[1], {event = 'failover_finished', worker = ARGV[2], incident = ARGV[3],
  note = 'flagged ' .. ARGV[4] .. ', put back ' .. ARGV[5]})
return {'OK'}
