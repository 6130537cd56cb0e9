-- claim: let exactly one delivery in. Replaces the start that was looked at, if it is still the same.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- ARGV[1] mid
-- ARGV[2] seen    the raw start that the verdict was made on, '' for none
-- ARGV[3] start   the new raw start, '' to remove
-- RETURNS OK (also where the new start stands there already: the answer to this very claim was lost) | CONFLICT
-- JOURNALS nothing
local raw = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if raw == ARGV[3] and raw ~= '' then return {'OK'} end
if raw ~= ARGV[2] then return {'CONFLICT'} end
if raw ~= '' then redis.call('HDEL', KEYS[2], start_of(raw).token) end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return {'OK'}
