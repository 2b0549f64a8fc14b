#include "runtime/trainer/comm/world.h"

#include <fmt/format.h>

#include <string_view>

#include "runtime/contract/rank_env.h"
#include "runtime/plan/communication.h"
#include "runtime/trainer/comm/rank_card.h"
#include "runtime/trainer/comm/rendezvous.h"
#include "runtime/trainer/comm/staged_communicator.h"

namespace shardrun::comm {
namespace {

using base::Code;
using base::Error;

constexpr std::string_view kUnable = "unable";  // shorter than any card

// Returns everyone's cards in rank order. A world of one rank asks nobody, so it needs no PMIx server.
Result<std::vector<std::string>> exchange_cards(const contract::RankEnv& env, const std::string& mine,
                                                std::chrono::milliseconds timeout) {
  if (env.world_size == 1) return std::vector<std::string>{mine};
  ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::begin(timeout));
  if (rendezvous.global_rank() != env.global_rank) {
    return Error(Code::kInvalid,
                 fmt::format("the environment says rank {}, PMIx says rank {}: is a launcher's "
                             "environment left over from an outer job?",
                             env.global_rank, rendezvous.global_rank()));
  }
  auto cards = rendezvous.exchange(mine, env.world_size, timeout);
  RETURN_IF_ERROR(rendezvous.finish());
  return cards;
}

}  // namespace

Error Meeting::in_world(Error error) const {
  std::vector<int> ranks;
  for (const int index : error.ranks()) ranks.push_back(members[index]);
  return std::move(error).about(std::move(ranks));
}

Result<Meeting> meet(const WorldOptions& options) {
  ASSIGN_OR_RETURN(auto env, contract::read_rank_env(contract::process_environment()));
  SessionOptions session_options;
  session_options.plugin_path = options.plugin_path;
  session_options.provider = options.provider;
  session_options.local_world_size = env.local_world_size;
  session_options.local_rank = env.local_rank;
  session_options.node_count = env.local_world_size == env.world_size ? 1 : 0;
  session_options.timeout = options.timeout;
  if (options.device) session_options.device_index = options.device->index;
  session_options.channel_count = options.channel_count;
  auto session = PluginSession::open(session_options);
  if (!session && !options.leave_out_unable) return std::move(session).error();

  const std::string card =
      session ? pack_card(env.node_index, env.node_name, session->local_address()) : std::string(kUnable);
  auto exchanged = exchange_cards(env, card, options.timeout);
  RETURN_IF_ERROR(session);
  if (!exchanged) return std::move(exchanged).error().context("meeting the other ranks");
  Meeting meeting{std::move(*session), {}, 0};
  std::vector<PeerCard> cards;
  for (int rank = 0; rank < env.world_size; ++rank) {
    const std::string& bytes = (*exchanged)[rank];
    if (options.leave_out_unable && bytes == kUnable) continue;
    ASSIGN_OR_RETURN(auto peer, unpack_card(bytes, rank));
    if (rank == env.global_rank) meeting.rank = static_cast<int>(cards.size());
    meeting.members.push_back(rank);
    cards.push_back(std::move(peer));
  }
  auto connected = meeting.session.connect(meeting.rank, cards);
  if (!connected) return meeting.in_world(std::move(connected).error());
  return meeting;
}

namespace {

// Opens the group's communicator, for buffers where the caller has them.
Result<std::unique_ptr<Communicator>> connect_group(PluginSession& session, const WorldOptions& options,
                                                    size_t number) {
  const int channel = static_cast<int>(number);
  const std::vector<uint32_t>& group = options.groups[number];
  const int64_t largest = options.device ? options.device->largest_parts[number] : -1;
  if (largest < 0) return session.communicator(channel, group);
  if (session.takes_device_buffers())
    return session.device_communicator(channel, options.device->stream, group);
  auto host = session.communicator(channel, group);
  if (!host) return host;
  ASSIGN_OR_RETURN(auto link, options.device->make_link());
  const int64_t piece = plan::staging_piece_bytes((*host)->size(), largest);
  return make_staged(std::move(*host), std::move(link), {piece, options.timeout});
}

}  // namespace

Result<World> connect_world(const WorldOptions& given) {
  WorldOptions options = given;
  options.channel_count = static_cast<int>(options.groups.size()) + 1;
  SHARDRUN_CHECK(!options.device || options.device->largest_parts.size() == options.groups.size(), "groups");
  ASSIGN_OR_RETURN(auto meeting, meet(options));
  PluginSession& session = meeting.session;

  World world;
  for (size_t channel = 0; channel < options.groups.size(); ++channel) {
    ASSIGN_OR_RETURN(auto communicator, connect_group(session, options, channel));
    world.communicators.push_back(std::move(communicator));
  }
  world.plugin_build_id = session.build_id();
  world.provider = session.provider();
  world.sums_in_rank_order = session.sums_in_rank_order();
  // The first group may be smaller than the world, so a barrier of the whole world shows that everyone has met.
  ASSIGN_OR_RETURN(auto everyone, session.communicator(static_cast<int>(options.groups.size())));
  RETURN_IF_ERROR(complete(*everyone, everyone->barrier()));
  return world;
}

}  // namespace shardrun::comm
