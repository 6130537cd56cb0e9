-- resync: a worker reminds a Redis that was restarted or replaced, and may have forgotten it, of what runs there
-- and what has just ended there. Overwrites no other start, and revives none whose message is over.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] buried  zset
-- KEYS[4] parked  hash
-- ARGV[1] starts  mid, start, how it ended or '', ... from here on
-- RETURNS OK, number of starts of which something was not on record
-- JOURNALS nothing
local forgotten = 0
for i = 1, #ARGV, 3 do
  local e, ended = start_of(ARGV[i + 1]), ARGV[i + 2]
  local buried = redis.call('ZSCORE', KEYS[3], e.worker)
  -- A copy of it has been recognised and dropped meanwhile, and the start was forgotten with that.
  local over = ended ~= '' and (parking_of(KEYS[4], ARGV[i]) or {}).state == 'finished'
  if not buried and not over then
    local new = redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
    local current = start_of(redis.call('HGET', KEYS[1], ARGV[i]))
    if ended ~= '' and current.token == e.token then
      new = new + redis.call('HSETNX', KEYS[2], e.token, ended)
      -- Its message went back: one copy that comes is no second publish, though equal to the byte.
      if e.phase == 'B' then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
    end
    if new > 0 then forgotten = forgotten + 1 end
  end
end
return {'OK', forgotten}
