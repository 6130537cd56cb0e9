-- finish: DLNG -> DLVD. A dead worker had stored the result of this start, and not written its end.
-- (A process that ends a task writes the end unanswered, without a script: worker/recorder.py.)
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] monitor_fence string
-- KEYS[4] journal stream
-- KEYS[5] tied        list
-- KEYS[6] outbox_seq  string
-- KEYS[7] outbox_due  zset
-- KEYS[8] outbox_wake list
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] fence   of the monitor that reports it
-- ARGV[5] release of the worker
-- ARGV[6] lanes   prefix of the lanes
-- RETURNS OK | DONE (its end is on record) | STALE (the message has a newer start, or none) | FENCED
-- JOURNALS finished
if fenced(KEYS[3], ARGV[4]) then return {'FENCED'} end
local e = start_of(ARGV[3])
if is_stale(start_of(redis.call('HGET', KEYS[1], ARGV[2])), e, ARGV[4]) then return {'STALE'} end
if redis.call('HSETNX', KEYS[2], e.token, 'D') == 0 then return {'DONE'} end
send_tied({tied = KEYS[5], outbox_seq = KEYS[6], outbox_due = KEYS[7], outbox_wake = KEYS[8]}, ARGV[6])
journal(KEYS[4], ARGV[1], {event = 'finished', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, pid = e.pid, state = 'DLVD', outcome = 'success',
  deliveries = e.deliveries, note = 'its worker died after it had stored the result', payload_bytes = e.payload_bytes,
  release = ARGV[5]})
return {'OK'}
