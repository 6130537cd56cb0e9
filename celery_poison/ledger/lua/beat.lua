-- beat: a worker says that it lives. The first beat registers it.
-- KEYS[1] leases   zset
-- KEYS[2] worker   hash
-- KEYS[3] buried   zset
-- KEYS[4] presence hash
-- KEYS[5] gone     hash
-- KEYS[6] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] worker  its incarnation
-- ARGV[3] first   1 for the first beat
-- ARGV[4] run_id  of the server at which its main process is subscribed, '' for none
-- ARGV[5] fields  field, value, ... from here on
-- RETURNS OK, how many commands this server has refused since it started (0 where it may not be asked)
--   | FENCED (it was declared dead, and is so for ever: it must rejoin under a new name)
-- JOURNALS worker_started (first beat)
local now, fresh = now_ms(), {}
-- Who has a lease is not buried. One that was heard in this very millisecond is looked up, too.
local is_new = ARGV[3] == '1' or redis.call('ZADD', KEYS[1], 'XX', 'CH', now, ARGV[2]) == 0
if is_new then
  if redis.call('ZSCORE', KEYS[3], ARGV[2]) then return {'FENCED'} end
  redis.call('ZADD', KEYS[1], now, ARGV[2])
end
redis.call('HDEL', KEYS[5], ARGV[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 5))
local kept = redis.call('HMGET', KEYS[2], 'since', 'kept', 'unguarded', 'unpromised', 'ledger_errors', 'troubles')
local function keep(...)
  for _, word in ipairs({...}) do fresh[#fresh + 1] = word end
end
if ARGV[3] == '1' then
  keep('since', now)
elseif not kept[1] then -- this Redis is empty, or an older one, since the last beat
  keep('since', 0, 'forgotten_at', now)
end
-- Where it is subscribed, and when its description ends, is written once in an hour.
local place = ARGV[4] .. ' ' .. math.floor(now / 3600000)
if is_new or kept[2] ~= place then
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[4])
  redis.call('EXPIRE', KEYS[2], 86400)
  keep('kept', place)
end
local troubles = 0
for i = 3, 5 do troubles = troubles + (tonumber(kept[i] or nil) or 0) end
if troubles > (tonumber(kept[6] or nil) or 0) then keep('troubled_at', now) end
if tostring(troubles) ~= kept[6] then keep('troubles', troubles) end
if #fresh > 0 then redis.call('HSET', KEYS[2], unpack(fresh)) end
if ARGV[3] == '1' then
  local machine = redis.call('HGET', KEYS[2], 'machine') or ''
  journal(KEYS[6], ARGV[1], {event = 'worker_started', worker = ARGV[2],
    note = machine ~= '' and 'on ' .. machine or '', release = redis.call('HGET', KEYS[2], 'release')})
end
-- Only what a sound command gets: other errors are of whoever asks, or made up by scripts.
local kinds = 'OOM MISCONF NOREPLICAS READONLY MASTERDOWN LOADING BUSY CLUSTERDOWN MOVED ASK TRYAGAIN'
local refused, errors = 0, redis.pcall('INFO', 'errorstats')
for kind in string.gmatch(type(errors) == 'string' and kinds or '', '%u+') do
  refused = refused + tonumber(string.match(errors, 'errorstat_' .. kind .. ':count=(%d+)') or 0)
end
return {'OK', refused}
