-- Shared by the scripts that park a message, or end one that may be parked.
-- A parking by name: state, number and start of the copy; kept as a JSON array, see model.Parked. The number is
-- a time in ms, and only grows.
local function parking_of(key, mid)
  local raw = redis.call('HGET', key, mid)
  local read, p = pcall(cjson.decode, raw or '')
  local start = read and type(p) == 'table' and type(p[2]) == 'number' and checked(p[3])
  return start and {state = p[1], number = p[2], start = start} or nil
end

-- Whether a mid belongs to one publish (headers.is_unique).
local function is_unique(mid)
  return string.sub(mid, 1, 1) ~= '~'
end

-- Whether what is parked may take so many bytes more: as Redis estimates them, so that nothing is to be kept in step.
-- An ACL user that may not ask has no limit.
local function has_room(parcels, more, limit)
  if limit == '' then return true end
  local used = redis.pcall('MEMORY', 'USAGE', parcels, 'SAMPLES', 100)
  return type(used) ~= 'number' or used + more <= tonumber(limit)
end

local function parking_text(state, number, start)
  return cjson.encode({state, number, start.fields})
end

local function raised(parking)
  return math.max(now_ms(), parking and parking.number + 1 or 0)
end

-- The message is over: no copy of it that was parked may run any more, be it published already or not.
-- state: finished, or kept (in quarantine)
-- What has no mid of its own may be another publish, equal to the byte: that runs, but for one where its equal went
-- back to the broker and ended. Then nothing is remembered of it.
local function end_parking_and_journal(parked, parcels, stream, maxlen, mid, state, went_back)
  local p = parking_of(parked, mid)
  if not p or p.state == 'kept' or p.state == state then return end
  if is_unique(mid) then
    redis.call('HSET', parked, mid, parking_text(state, raised(p), p.start))
  elseif went_back and p.state == 'waiting' then
    redis.call('HDEL', parked, mid)
  else
    return
  end
  redis.call('HDEL', parcels, mid)
  if p.state ~= 'waiting' then return end
  local e = p.start
  journal(stream, maxlen, {event = 'duplicate', id = e.id, mid = mid, token = e.token, task = e.task,
    queue = e.queue, worker = e.worker, state = state == 'kept' and 'NDLV' or 'DLVD',
    deliveries = e.deliveries,
    note = state == 'kept' and 'this message is in quarantine'
      or 'an earlier start of this message already finished'})
end
