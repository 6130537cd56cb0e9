-- retract: take back every rule that the pipeline put in force and nobody changed since, and its proposal.
-- KEYS[1] published hash
-- KEYS[2] blocks    hash
-- KEYS[3] journal   stream
-- ARGV[1] maxlen
-- ARGV[2] actor
-- RETURNS OK, rules taken back
-- JOURNALS unblocked (for each rule)
local raw, count = redis.call('HGET', KEYS[1], 'applied'), 0
local read, told = pcall(cjson.decode, raw or '')
local ours = read and type(told) == 'table' and type(told.fields) == 'table' and told.fields or {}
for field, rule in pairs(ours) do
  -- A person may have blocked it anew meanwhile: that is the person's rule.
  if redis.call('HGET', KEYS[2], field) == rule then
    redis.call('HDEL', KEYS[2], field)
    count = count + 1
    journal(KEYS[3], ARGV[1], {event = 'unblocked', task = cjson.decode(rule).task, actor = ARGV[2],
      note = field:gsub(':', ' ', 1) .. ': the pipeline took it back'})
  end
end
redis.call('HDEL', KEYS[1], 'applied', 'proposed')
if count > 0 then raise_version(KEYS[2], now_ms()) end
return {'OK', count}
