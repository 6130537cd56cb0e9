-- Shared by the scripts about idempotency keys.
-- Who has a key: mid, token and id of its start; done, '1' once its task has returned; runs: that start is on
-- record, and its end is not. Nil for nobody.
local function holder_of(effect, running, done)
  local h = hash(effect)
  if not h.token then return nil end
  local e = start_of(redis.call('HGET', running, h.mid))
  h.runs = e ~= nil and e.token == h.token and not redis.call('HGET', done, h.token)
  return h
end
