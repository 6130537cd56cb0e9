-- Shared by the scripts that park a message, or end one that may be parked.
-- A parking: {state, number, start of the copy}. The number is a time in ms, and only grows.
local function parking_of(key, mid)
  local raw = redis.call('HGET', key, mid)
  return raw and cjson.decode(raw) or nil
end

local function raised(parking)
  return math.max(now_ms(), parking and parking[2] + 1 or 0)
end

-- The message is over: no copy of it that was parked may run any more, be it published already or not.
-- state: finished, or kept (in quarantine)
local function end_parking_and_journal(parked, parcels, stream, maxlen, mid, state)
  local p = parking_of(parked, mid)
  if not p or p[1] == 'kept' or p[1] == state then return end
  redis.call('HSET', parked, mid, cjson.encode({state, raised(p), p[3]}))
  redis.call('HDEL', parcels, mid)
  if p[1] ~= 'waiting' then return end
  local e = p[3]
  journal(stream, maxlen, {event = 'duplicate', id = e[8], mid = mid, token = e[2], task = e[9],
    queue = e[10], worker = e[3], state = state == 'kept' and 'NDLV' or 'DLVD', deliveries = e[6],
    note = state == 'kept' and 'this message is in quarantine'
      or 'an earlier start of this message already finished'})
end
