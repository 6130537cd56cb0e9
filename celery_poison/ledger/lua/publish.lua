-- publish: a sheet of block rules that the pipeline made: kept as a proposal, or put in force, all rules at once.
-- KEYS[1] published hash
-- KEYS[2] blocks    hash
-- KEYS[3] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] force     1 to put the rules in force, '' to propose them
-- ARGV[3] sheet     JSON, as docs/keys.md says; its rules are all of fingerprints
-- ARGV[4] lasts_ms  how long the rules, or the proposal, hold
-- ARGV[5] actor
-- RETURNS OK, version, rules put in force (a rule that is there already stays as it is)
-- JOURNALS blocked (for each rule put in force)
local now, sheet = now_ms(), cjson.decode(ARGV[3])
tidy_blocks(KEYS[2], now)
local function fields(name)
  local read, told = pcall(cjson.decode, redis.call('HGET', KEYS[1], name) or '')
  return read and type(told) == 'table' and told or nil
end
local before = fields('applied')
local last = redis.call('HGET', KEYS[1], 'version') or '0'
local version = math.max(tonumber(last:match('^%d+$') or 0) + 1, now)
redis.call('HSET', KEYS[1], 'version', version)
sheet.version, sheet.at_ms, sheet.until_ms = version, now, now + tonumber(ARGV[4])
if ARGV[2] ~= '1' then
  redis.call('HSET', KEYS[1], 'proposed', cjson.encode(sheet))
  return {'OK', version, 0}
end
-- What an earlier sheet put in force and nobody changed since still belongs to us: one rollback takes back all.
local ours, count = before and before.fields or {}, 0
for _, rule in ipairs(sheet.rules) do
  local field = 'fingerprint:' .. rule.fingerprint
  if redis.call('HEXISTS', KEYS[2], field) == 0 then
    local raw = cjson.encode({task = rule.task, since_ms = now, until_ms = sheet.until_ms, actor = ARGV[5],
      note = rule.note, convictions = 0})
    redis.call('HSET', KEYS[2], field, raw)
    ours[field] = raw
    count = count + 1
    journal(KEYS[3], ARGV[1], {event = 'blocked', task = rule.task, actor = ARGV[5],
      note = 'fingerprint ' .. rule.fingerprint .. ': ' .. rule.note})
  end
end
redis.call('HDEL', KEYS[1], 'proposed')
redis.call('HSET', KEYS[1], 'applied', cjson.encode({version = version, at_ms = now, fields = ours}))
if count > 0 then raise_version(KEYS[2], now) end
return {'OK', version, count}
