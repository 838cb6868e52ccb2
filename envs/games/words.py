"""Plain English words of five letters, for word games.

Source: written down for this project from everyday vocabulary; no list was copied. No plurals in -s, no names.
"""

from __future__ import annotations

WORDS = tuple(
    """
    about above actor acute adapt admit adopt after again agree ahead alarm album alert alike alive allow alone along
    angle angry apart apple apply arena argue arise aside avoid awake award aware basic beach begin bench birth black
    blade blame blank blind block blood board bonus brain brave bread break brick brief bring broad brown brush build
    cabin cable carry catch cause chain chair chalk charm chart chase cheap check cheek chess chest chief child civil
    claim clean clear climb clock close cloth cloud coach coast color count court cover craft crash cream crime crowd
    crown curve cycle daily dance death delay depth dirty doubt dozen draft drama dream dress drift drink drive eager
    early earth eight elbow empty enemy enjoy enter equal error event exact exist extra faint faith false fancy favor
    fence fever field fifth fight final first flame flash fleet float flood floor flour focus force forth frame fresh
    front fruit funny ghost giant given glass globe glory grace grade grain grand grant grape grass grave great green
    greet group guard guess guest guide habit happy heart heavy hello honey honor horse hotel house human humor ideal
    image index inner input issue judge juice knife knock label labor large laser later laugh layer learn least leave
    legal lemon level light limit local logic loose lower lucky lunch magic major maker march match mayor medal merry
    metal meter might minor mixed model money month moral motor mount mouse mouth movie music naked nerve never night
    noble noise north novel nurse ocean offer often onion opera orbit order other outer owner paint panel paper party
    patch pause peace phone photo piano piece pilot pitch place plain plane plant plate point pound power press price
    pride prime print prize proof proud queen quick quiet quite radio raise range rapid ratio reach ready relax reply
    right rival river robot rough round route royal rural salad sauce scale scene scope score sense serve seven shade
    shake shape share sharp sheep sheet shelf shell shift shine shirt shock shoot shore short shout sight silly since
    skill skirt sleep slice slide slope small smart smell smile smoke snake solid solve sound south space spare speak
    speed spend spice split spoon sport staff stage stair stamp stand start state steam steel steep stick stiff still
    stone store storm story stove strip study stuff style sugar sunny sweet swift swing table taste teach thank thick
    thing think third throw thumb tiger tight tired title toast today tooth topic total touch tough towel tower trace
    track trade trail train treat trend trial trick truck trust truth twice uncle under union unite until upper upset
    urban usual value video visit vital voice waste watch water wheel where white whole woman world worry worth wound
    write wrong yield young youth
    """.split()  # noqa: SIM905  (a list of quoted words is no easier to read)
)
