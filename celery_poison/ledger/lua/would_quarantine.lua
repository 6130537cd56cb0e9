-- would_quarantine: a conviction of which nothing comes, since tasks are only observed. Changes no state.
-- KEYS[1] lineage hash
-- KEYS[2] would   hash
-- KEYS[3] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] cause
-- ARGV[5] reason
-- ARGV[6] known   other facts of the start, see _journal.lua
-- RETURNS OK | KEPT (this task id is in the journal already)
-- JOURNALS would_quarantine
local e, line = start_of(ARGV[3]), hash(KEYS[1])
if line.observed then return {'KEPT'} end
if line.id then redis.call('HSET', KEYS[1], 'observed', '1') end
redis.call('HINCRBY', KEYS[2], ARGV[4], 1)
local told = {event = 'would_quarantine', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = line.worker or e.worker, cause = ARGV[4],
  deliveries = line.deliveries or e.deliveries,
  crashes = line.crashes or 0, strikes = line.strikes or 0, failures = line.failures or 0,
  incident = line.incident, note = ARGV[5],
  payload_bytes = e.payload_bytes, evidence = line.evidence}
journal(KEYS[3], ARGV[1], add_known(told, ARGV[6]))
return {'OK'}
