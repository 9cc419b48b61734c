"""Every command of mqadmin with useful arguments, ordered so that later commands find what earlier ones created.

A line is a command with its arguments; a second line of the same command has ``#`` and a word after its name. The sweep
replaces the words in braces.
"""

from __future__ import annotations

from typing import Final

BOTH: Final = """
updateTopic -b {broker} -t made -r 4 -w 4
updateTopic#cluster -c {cluster} -t made -r 8 -w 8 -o true
updateTopicPerm -b {broker} -t made -p 4
topicRoute -t {topic}
topicRoute#unknown -t unknown
topicStatus -t {topic}
topicClusterList -t {topic}
topicList
topicList#cluster -c
clusterList
clusterList#more -m
brokerStatus -b {broker}
updateSubGroup -b {broker} -g made -r 2
getConsumerConfig -g made
queryMsgById -i {place} -t {topic}
queryMsgByKey -t {topic} -k key-1
queryMsgByUniqueKey -t {topic} -i {id}
queryMsgByOffset -t {topic} -b broker-a -i {queue} -o {offset}
queryMsgTraceById -i {id}
printMsg -t {topic} -d true
printMsgByQueue -t {topic} -a broker-a -i {queue} -p true -d true
sendMsgStatus -b broker-a -s 10 -c 3
sendMessage -t {topic} -p body -k key-2 -c tag
consumeMessage -t {topic} -b broker-a -i {queue} -o 0 -c 1 -g {group}
queryCq -t {topic} -q {queue} -i 0 -c 10 -b {broker} -g {group}
brokerConsumeStats -b {broker}
producerConnection -g producers -t {topic}
consumerConnection -g {group}
consumerConnection#unknown -g unknown
consumerProgress -g {group}
consumerStatus -g {group}
producer -b {broker}
statsAll -t {topic}
allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2
checkMsgSendRT -t {topic} -a 3 -s 10
clusterRT -a 2 -s 10 -i 1
startMonitoring
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
updateOrderConf -t {topic} -m put -v broker-a:2
updateOrderConf#get -t {topic} -m get
updateOrderConf#delete -t {topic} -m delete
getNamesrvConfig
updateNamesrvConfig -k orderMessageEnable -v true
getBrokerConfig -b {broker}
updateBrokerConfig -b {broker} -k transactionCheckMax -v 20
wipeWritePerm -b broker-a
addWritePerm -b broker-a
cleanExpiredCQ -b {broker}
deleteExpiredCommitLog -b {broker}
cleanUnusedTopic -b {broker}
resetOffsetByTime -g {group} -t {topic} -s now
resetOffsetByTime#offline -g offline -t {topic} -s 1
skipAccumulatedMessage -g {group} -t {topic}
cloneGroupOffset -s {group} -d made -t {topic} -o true
exportMetadata -c {cluster} -f {folder}
exportMetadata#topics -b {broker} -t -f {folder}
exportMetadata#groups -b {broker} -g -f {folder}
exportConfigs -c {cluster} -f {folder}
exportMetrics -c {cluster} -f {folder}
deleteSubGroup -b {broker} -g made
deleteTopic -c {cluster} -t made
"""

OLD: Final = """
updateAclConfig -b {broker} -a made-account -s made-secret -t made=PUB
clusterAclConfigVersion -b {broker}
getAclConfig -b {broker}
updateGlobalWhiteAddr -b {broker} -g 127.0.0.1
deleteAclConfig -b {broker} -a made-account
"""

NEW: Final = """
updateTopic#attribute -b {broker} -t made-delay -a +message.type=DELAY
updateTopicList -b {broker} -f {topics}
updateSubGroupList -b {broker} -f {groups}
setConsumeMode -b {broker} -t {topic} -g {group} -m PULL
resetOffsetByTime#offset -b {broker} -g {group} -t {topic} -q 0 -o 0 -s -1
addBroker -c {broker} -b /none
removeBroker -c {broker} -b {cluster}:broker-a:0
resetMasterFlushOffset -b {broker} -o 0
updateStaticTopic -b broker-a -t made-static -qn 2
remappingStaticTopic -b broker-a -t made-static
exportMetadataInRocksDB -p {folder}/none -t topics
exportPopRecord -b {broker} -d true
haStatus -b {broker}
getSyncStateSet -a {name_server} -b broker-a
getBrokerEpoch -b broker-a
getControllerMetaData -a {name_server}
getControllerConfig -a {name_server}
updateControllerConfig -a {name_server} -k isNotifyBrokerRoleChanged -v true
electMaster -a {name_server} -b 1 -bn broker-a -c {cluster}
cleanBrokerMetadata -a {name_server} -bn broker-a -c {cluster}
dumpCompactionLog -f {folder}/none
getColdDataFlowCtrInfo -b {broker}
updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 100
removeColdDataFlowCtrGroupConfig -b {broker} -g {group}
setCommitLogReadAheadMode -b {broker} -m 0
createUser -b {broker} -u made -p secret -t Normal
updateUser -b {broker} -u made -p other
getUser -b {broker} -u made
listUser -b {broker}
copyUser -f {broker} -t {broker} -u made
createAcl -b {broker} -s User:made -r Topic:{topic} -a Pub -d Allow -i 127.0.0.1
updateAcl -b {broker} -s User:made -r Topic:{topic} -a Sub -d Allow -i 127.0.0.1
getAcl -b {broker} -s User:made
listAcl -b {broker}
copyAcl -f {broker} -t {broker} -s User:made
deleteAcl -b {broker} -s User:made
deleteUser -b {broker} -u made
rocksDBConfigToJson -b {broker}
checkRocksdbCqWriteProgress -c {cluster}
switchTimerEngine -b {broker} -e F
getBrokerLiteInfo -b {broker}
getParentTopicInfo -p {topic}
getLiteTopicInfo -p {topic} -l lite
getLiteClientInfo -p {topic} -g {group} -c client
getLiteGroupInfo -p {topic} -g {group}
triggerLiteDispatch -p {topic} -g {group}
"""

COMMANDS: Final = {
    version: [line for line in (BOTH + more).splitlines() if line] for version, more in (("4.9.7", OLD), ("5.5.0", NEW))
}
"""Commands by the release of the tool."""
