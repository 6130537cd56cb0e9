-- index: a page of what is in quarantine or was given up, newest or oldest first, as one text; changes nothing.
-- KEYS[1] quarantine zset; or failed, or a group
-- ARGV[1] first  score from which on
-- ARGV[2] last   score up to which
-- ARGV[3] order  newest | oldest
-- ARGV[4] skip   so many first
-- ARGV[5] size   at most so many
-- RETURNS OK, a JSON array of mid, score, ...; an empty object where there are none
-- JOURNALS nothing
local range = ARGV[3] == 'newest' and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
return {'OK', cjson.encode(redis.call(range, KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', ARGV[4], ARGV[5]))}
