-- remind: a worker tells a Redis that was restarted or replaced, and may have forgotten it, what runs there
-- and what has just ended there. Overwrites nobody's start; a worker that was declared dead is not heard.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] buried  zset
-- ARGV[1] starts  mid, start, how it ended or '', ... from here on
-- RETURNS OK, number of starts of which something was not on record
-- JOURNALS nothing
local forgotten = 0
for i = 1, #ARGV, 3 do
  local e = cjson.decode(ARGV[i + 1])
  if not redis.call('ZSCORE', KEYS[3], e[3]) then
    local new = redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
    local current = entry_of(redis.call('HGET', KEYS[1], ARGV[i]))
    if ARGV[i + 2] ~= '' and current[2] == e[2] then
      new = redis.call('HSETNX', KEYS[2], e[2], ARGV[i + 2]) + new
    end
    if new > 0 then forgotten = forgotten + 1 end
  end
end
return {'OK', forgotten}
